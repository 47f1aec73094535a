"""A RADIO-style vision model with adaptors, for ``transformers.AutoModel``; needs only torch, timm and transformers.

``radioplat export export.format=hf`` copies this file into its folder. The tensors' names and ``config.json``
are those of NVIDIA's RADIO models on Hugging Face.
"""

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


class RadioConfig(PretrainedConfig):
    """Configuration: ``args`` of the backbone, and ``adaptor_configs`` with the widths of each adaptor."""

    model_type = "radio"

    def __init__(self, args=None, adaptor_names=None, adaptor_configs=None, patch_size=16, **kwargs):
        self.args, self.patch_size = args or {}, patch_size
        self.adaptor_names, self.adaptor_configs = adaptor_names or [], adaptor_configs or {}
        super().__init__(**kwargs)


class PatchGenerator(nn.Module):
    """Images to tokens: class tokens and registers, then patches with their positions."""

    def __init__(self, patch, width, side, tokens):
        super().__init__()
        self.patch, self.side = patch, side
        self.embedder = nn.Linear(3 * patch * patch, width, bias=False)
        self.pos_embed = nn.Parameter(torch.zeros(1, side * side, width))
        self.cls_token = nn.ParameterDict({"token": nn.Parameter(torch.zeros(tokens, width))})

    def forward(self, images):
        """``[B, C, H, W]`` to prefix and patch tokens ``[B, T + N, D]``."""
        b, c, height, width = images.shape
        p = self.patch
        h, w = height // p, width // p
        patches = images.reshape(b, c, h, p, w, p).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w, c * p * p)
        tokens = self.embedder(patches) + self.positions(h, w)
        return torch.cat([self.cls_token["token"].expand(b, -1, -1), tokens], dim=1)

    def positions(self, h, w):
        """Return the top left h x w of the table, resized to max(h, w) per side: ``[1, h * w, D]``."""
        table = self.pos_embed.reshape(1, self.side, self.side, -1).permute(0, 3, 1, 2)
        if max(h, w) != self.side:
            size = (max(h, w), max(h, w))
            table = F.interpolate(table.float(), size=size, mode="bilinear", align_corners=False).to(table.dtype)
        return table[:, :, :h, :w].flatten(2).transpose(1, 2)


class Vit(nn.Module):
    """A patch generator, then timm's blocks."""

    def __init__(self, args):
        super().__init__()
        options = {k: v for k, v in args["model_kwargs"].items() if k != "weight_init"}
        vit = timm.create_model(args["model"], pretrained=False, num_classes=0, **options)
        names = {t["name"] for t in args["teachers"]}
        self.classes = len(names) if args["cls_token_per_teacher"] else 1
        self.prefix = self.classes + (args["cpe_num_registers"] or 0)
        patch = vit.patch_embed.patch_size[0]
        self.patch_generator = PatchGenerator(patch, vit.embed_dim, args["cpe_max_size"] // patch, self.prefix)
        self.blocks = vit.blocks
        self.norm = vit.norm if args.get("model_norm") else nn.Identity()

    def forward(self, images):
        """Class tokens ``[B, T, D]`` and patches ``[B, N, D]``."""
        tokens = self.norm(self.blocks(self.patch_generator(images)))
        return tokens[:, : self.classes], tokens[:, self.prefix :]


class Conditioner(nn.Module):
    """Normalizes images in [0, 1] for the backbone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("norm_mean", torch.zeros(3, 1, 1))
        self.register_buffer("norm_std", torch.ones(3, 1, 1))

    def forward(self, images):
        """Images in [0, 1], normalized."""
        return (images - self.norm_mean) / self.norm_std


class Mlp(nn.Module):
    """Linear, n x [x + Linear(GELU(LN x))], LN, GELU, Linear."""

    def __init__(self, input_dim, hidden_dim, output_dim, num_inner=0, upsample_factor=1, **_):
        super().__init__()
        self.factor = upsample_factor or 1
        self.fc1 = nn.Linear(input_dim, hidden_dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden_dim), nn.GELU(), nn.Linear(hidden_dim, hidden_dim))
            for _ in range(num_inner)
        )
        self.final = nn.Sequential(nn.LayerNorm(hidden_dim), nn.GELU(), nn.Linear(hidden_dim, output_dim))

    def forward(self, x, grid=None):
        """Tokens ``[B, N, D]`` to the teacher's width; ``grid`` is their height and width."""
        x = self.fc1(x)
        for block in self.blocks:
            x = x + block(x)
        x = self.final(x)
        if self.factor > 1:  # each position becomes a block of factor x factor, row by row
            (h, w), u = grid, self.factor
            x = x.reshape(x.shape[0], h, w, u, u, -1).permute(0, 1, 3, 2, 4, 5).flatten(1, 4)
        return x


class AttentionMlp(nn.Module):
    """Two ViT blocks over the positions, then the MLP."""

    def __init__(self, input_dim, **config):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(input_dim, 16, init_values=1e-5) for _ in range(2)))
        self.mlp = Mlp(input_dim, **config)

    def forward(self, x, grid):
        """Blocks first, then the MLP."""
        return self.mlp(self.blocks(x), grid)


class Adaptor(nn.Module):
    """Backbone features in one teacher's space."""

    def __init__(self, config):
        super().__init__()
        self.slot = config["head_idx"]
        of_maps = AttentionMlp if config["feature"].get("mlp_version") == "attn" else Mlp
        self.head_mlp, self.feat_mlp = Mlp(**config["summary"]), of_maps(**config["feature"])

    def forward(self, classes, patches, grid):
        """The summary and the spatial features in the teacher's space."""
        return self.head_mlp(classes[:, self.slot]), self.feat_mlp(patches, grid)


class Radio(nn.Module):
    """All modules with weights."""

    def __init__(self, config):
        super().__init__()
        self.model = Vit(config.args)
        self.input_conditioner = Conditioner()
        slots = [i for i, t in enumerate(config.args["teachers"]) if t.get("use_summary", True)]
        self.register_buffer("summary_idxs", torch.tensor(slots, dtype=torch.int64))
        self.adaptors = nn.ModuleDict({name: Adaptor(config.adaptor_configs[name]) for name in config.adaptor_names})


class RadioModel(PreTrainedModel):
    """``model(images)``: ``(summary, features)``, or with adaptors a dict of such pairs, ``backbone``'s first.

    Images are ``[B, 3, H, W]`` in [0, 1], with sides that are multiples of the patch size. A summary is ``[B, D]``,
    features are ``[B, h * w, D]``.
    """

    config_class = RadioConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.radio_model = Radio(config)
        self.post_init()

    def _init_weights(self, module):
        """Do nothing: all tensors are loaded."""

    def forward(self, pixel_values):
        """``[B, 3, H, W]`` in [0, 1] to every adaptor's summary and features."""
        radio, patch = self.radio_model, self.config.patch_size
        grid = tuple(side // patch for side in pixel_values.shape[-2:])
        classes, patches = radio.model(radio.input_conditioner(pixel_values))
        backbone = (classes[:, radio.summary_idxs].flatten(1), patches)
        if not radio.adaptors:
            return backbone
        return {"backbone": backbone} | {name: a(classes, patches, grid) for name, a in radio.adaptors.items()}
