"""FAN, TAO's backbone that timm lacks; imported only where a spec or a file names it."""
