"""What features are compared by; one value a sample, in fp32."""
