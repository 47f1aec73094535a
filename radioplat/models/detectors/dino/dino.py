"""DINO (Zhang et al. 2022, DETR with Improved DeNoising Anchor Boxes) from parts of transformers' Deformable DETR and
RT-DETR.

Layers, encoder and groups of noised boxes are transformers'. This module implements the rest of the paper: the choice
of queries (mixed query selection, section 3.4), gradients between the layers' boxes (look forward twice, section 3.5),
and training on noised boxes (contrastive denoising, section 3.3).
"""

# No postponed annotations: `strict` checks values by the types themselves.

import math
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import DeformableDetrConfig, RTDetrResNetConfig
from transformers.models.deformable_detr.modeling_deformable_detr import (
    DeformableDetrDecoder,
    DeformableDetrEncoder,
    DeformableDetrMLPPredictionHead,
    DeformableDetrObjectDetectionOutput,
    DeformableDetrSinePositionEmbedding,
)
from transformers.models.rt_detr.modeling_rt_detr import get_contrastive_denoising_training_group

from radioplat.errors import SpecError
from radioplat.models.backbones.pyramid import Pyramid
from radioplat.models.detectors.dino.loss import DinoLoss

_PRIOR = 0.01  # initial probability of a class (Lin et al. 2017, section 4.1)
_FAR = 11.5  # limit of a box's logits: the sigmoid's gradient is 1e-5 there
_SIDE = 0.05  # a proposal's side at the first level as a share of the image; each level doubles it
_WIDEST = 0.8
_TEMPERATURE = 10_000  # temperature of the sine embedding of a query's box
# Arguments of DinoConfig that a spec may set; DINO determines Deformable DETR's other arguments.
OPTIONS = (
    "d_model", "num_queries", "num_select", "num_feature_levels", "position_temperature", "activation_function",
    "dropout", "attention_dropout", "activation_dropout", "encoder_layers", "encoder_ffn_dim",
    "encoder_attention_heads", "encoder_n_points", "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads",
    "decoder_n_points", "share_heads", "class_cost", "bbox_cost", "giou_cost", "class_loss_coefficient",
    "bbox_loss_coefficient", "giou_loss_coefficient", "encoder_loss_coefficient", "focal_alpha", "num_denoising",
    "label_noise_ratio", "box_noise_scale",
)  # fmt: skip
_POSITIVE = (
    "d_model", "num_queries", "num_select", "num_feature_levels", "encoder_layers", "encoder_ffn_dim",
    "encoder_attention_heads", "encoder_n_points", "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads",
    "decoder_n_points", "position_temperature", "box_noise_scale",
)  # fmt: skip


@strict
class DinoConfig(DeformableDetrConfig):
    """Deformable DETR's arguments with the paper's defaults, and DINO's own under RT-DETR's names.

    Attributes:
        class_loss_coefficient, encoder_loss_coefficient: weights of the focal loss, and of all losses of the encoder's
            proposals.
        num_select: number of detections in an image (pairs of a query and a class).
        num_denoising: noised boxes of each kind (positive and negative) for the image with most objects.
        label_noise_ratio: twice the fraction of noised boxes whose label is drawn at random.
        box_noise_scale: an edge of a positive noised box moves by at most this times half the box's side; of a negative
            one by between once and twice that.
        share_heads: whether all decoder layers share one class head and one box head.
        position_temperature: of the sine embedding of a map's positions.
    """

    model_type = "radioplat_dino"
    num_queries: int = 900
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    dropout: float | int = 0.0
    class_cost: float | int = 2
    bbox_cost: float | int = 5
    giou_cost: float | int = 2
    class_loss_coefficient: float | int = 1
    bbox_loss_coefficient: float | int = 5
    giou_loss_coefficient: float | int = 2
    encoder_loss_coefficient: float | int = 1
    num_select: int = 300
    num_denoising: int = 100
    label_noise_ratio: float | int = 0.5
    box_noise_scale: float | int = 1.0
    share_heads: bool = True
    position_temperature: float | int = 20


class Tokens(NamedTuple):
    """Maps flattened to tokens, one level after the other.

    Attributes:
        values, positions: ``[B, N, D]``, features and position embeddings.
        shapes: height and width of each level.
        sizes: the same, int64 ``[L, 2]``.
        starts: the first token of each level, int64 ``[L]``.
    """

    values: torch.Tensor
    positions: torch.Tensor
    shapes: list[tuple[int, int]]
    sizes: torch.Tensor
    starts: torch.Tensor

    def places(self) -> dict[str, Any]:
        """Return positions and shapes as keyword arguments of transformers' layers."""
        return dict(spatial_shapes=self.sizes, spatial_shapes_list=self.shapes, level_start_index=self.starts)


class Proposals(NamedTuple):
    """The positions that become queries, by descending score.

    Attributes:
        logits: ``[B, Q, C]``.
        boxes: ``[B, Q, 4]``, logits in DETR's format, with gradients.
    """

    logits: torch.Tensor
    boxes: torch.Tensor


class Dino(nn.Module):
    """DINO without its backbone: projections of the maps, encoder, query selection, decoder and losses.

    ``dino(maps, labels)`` returns transformers' output; with ``labels`` (see
    :class:`radioplat.models.detectors.base.Detector`) also ``loss_dict`` and their sum ``loss``.

    Args:
        channels: of the maps, by ascending stride; each further level that the configuration wants is a convolution of
            stride 2 on the one before.
    """

    def __init__(self, config: DinoConfig, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        width, levels = config.d_model, config.num_feature_levels
        further = [channels[-1], *[width] * levels][: levels - len(channels)]
        self.input_proj = nn.ModuleList(_level(c, width, 1) for c in channels)
        self.input_proj.extend(_level(c, width, 3) for c in further)
        self.position_embedding = DeformableDetrSinePositionEmbedding(width // 2, config.position_temperature, True)
        self.level_embed = nn.Parameter(torch.empty(levels, width))
        self.encoder = DeformableDetrEncoder(config)
        self.enc_output = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.enc_score_head = nn.Linear(width, config.num_labels)
        self.enc_bbox_head = _box_head(width)
        self.query_content = nn.Embedding(config.num_queries, width)
        self.denoising_class_embed = nn.Embedding(config.num_labels + 1, width, padding_idx=config.num_labels)
        self.decoder = DeformableDetrDecoder(config)  # only its layers are used, see _decode
        self.decoder.norm = nn.LayerNorm(width)
        self.decoder.query_pos_head = DeformableDetrMLPPredictionHead(2 * width, width, width, 2)
        heads = 1 if config.share_heads else config.decoder_layers
        self.decoder.class_embed = nn.ModuleList(nn.Linear(width, config.num_labels) for _ in range(heads))
        self.decoder.bbox_embed = nn.ModuleList(_box_head(width) for _ in range(heads))
        self.loss = DinoLoss(config)
        self._start()

    def forward(self, maps: list[torch.Tensor], labels: list[dict[str, torch.Tensor]] | None = None):
        """Return transformers' output for the maps; with ``labels`` also the losses."""
        tokens = self._tokens(maps)
        memory = self._encode(tokens)
        proposals = self._select(memory, tokens.shapes)
        content = self.query_content.weight.expand(memory.shape[0], -1, -1)
        boxes, mask, noised = proposals.boxes.detach(), None, None
        if labels is not None and self.training:
            content, boxes, mask, noised = self._with_noised(content, boxes, labels)
        states, logits, boxes = self._decode(content, boxes, memory, tokens, mask)
        layers, denoised = (logits, boxes.sigmoid()), None
        if noised is not None:
            split = noised["dn_num_split"]
            denoised = tuple(t.split(split, 2)[0] for t in layers)
            layers, states = tuple(t.split(split, 2)[1] for t in layers), states.split(split, 2)[1]
        output = DeformableDetrObjectDetectionOutput(
            logits=layers[0][-1],
            pred_boxes=layers[1][-1],
            last_hidden_state=states[-1],
            encoder_last_hidden_state=memory,
            init_reference_points=proposals.boxes.detach().sigmoid(),
        )
        if labels is not None:
            first = proposals.logits, proposals.boxes.sigmoid()
            output.loss_dict = self.loss(layers, first, denoised, noised, labels)
            output.loss = sum(output.loss_dict.values())
        return output

    def _tokens(self, maps: list[torch.Tensor]) -> Tokens:
        levels = [project(level) for project, level in zip(self.input_proj, maps, strict=False)]
        for project in self.input_proj[len(maps) :]:
            levels.append(project(maps[-1] if len(levels) == len(maps) else levels[-1]))
        positions = []
        for level, own in zip(levels, self.level_embed, strict=True):
            at = self.position_embedding(level.shape, level.device, torch.float32).to(level.dtype)
            positions.append(at.flatten(2).transpose(1, 2) + own)
        shapes = [tuple(level.shape[-2:]) for level in levels]
        sizes = torch.tensor(shapes, device=levels[0].device)
        starts = sizes.prod(1).cumsum(0) - sizes.prod(1)
        values = torch.cat([level.flatten(2).transpose(1, 2) for level in levels], 1)
        return Tokens(values, torch.cat(positions, 1), shapes, sizes, starts)

    def _encode(self, tokens: Tokens) -> torch.Tensor:
        whole = tokens.values.new_ones(tokens.values.shape[0], len(tokens.shapes), 2)  # no padding
        return self.encoder(
            inputs_embeds=tokens.values,
            spatial_position_embeddings=tokens.positions,
            valid_ratios=whole,
            **tokens.places(),
        ).last_hidden_state

    def _select(self, memory: torch.Tensor, shapes: list[tuple[int, int]]) -> Proposals:
        """Choose the positions with the highest class scores."""
        known = self.enc_output(memory)
        logits = self.enc_score_head(known)
        best = logits.amax(-1).topk(self.config.num_queries, 1).indices[..., None]
        start = _grid(shapes, memory.device).expand(memory.shape[0], -1, -1)
        known = known.gather(1, best.expand(-1, -1, known.shape[-1]))
        moved = self.enc_bbox_head(known).float() + start.gather(1, best.expand(-1, -1, 4))
        return Proposals(logits.gather(1, best.expand(-1, -1, logits.shape[-1])).float(), moved.clamp(-_FAR, _FAR))

    def _with_noised(
        self, content: torch.Tensor, boxes: torch.Tensor, labels: list[dict[str, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Any] | None]:
        """Prepend queries of noised objects to the others; the attention mask separates them."""
        config = self.config
        noisy, noisy_boxes, mask, noised = get_contrastive_denoising_training_group(
            labels,
            config.num_labels,
            config.num_queries,
            self.denoising_class_embed,
            config.num_denoising,
            config.label_noise_ratio,
            config.box_noise_scale,
        )
        if noised is None:  # no object in any image
            return content, boxes, None, None
        mask = mask[None, None].to(content.dtype)
        return torch.cat([noisy.to(content.dtype), content], 1), torch.cat([noisy_boxes, boxes], 1), mask, noised

    def _decode(
        self,
        content: torch.Tensor,
        boxes: torch.Tensor,
        memory: torch.Tensor,
        tokens: Tokens,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the decoder; return states ``[layers, B, Q, D]``, class logits, and logits of boxes, fp32.

        A layer reads the detached boxes of the layer before, but its correction is added to those boxes with their
        gradient: a layer's loss also trains the layer before it, and none before that.
        """
        decoder = self.decoder
        with_gradient, states, logits, coordinates = boxes, [], [], []
        for i, layer in enumerate(decoder.layers):
            at = boxes.sigmoid()
            content = layer(
                content,
                object_queries_position_embeddings=decoder.query_pos_head(_sine(at, memory)),
                reference_points=at[:, :, None].expand(-1, -1, len(tokens.shapes), -1).to(memory.dtype),
                encoder_hidden_states=memory,
                attention_mask=mask,
                **tokens.places(),
            )
            state = decoder.norm(content)
            moved = _of(decoder.bbox_embed, i)(state).float()
            coordinates.append(with_gradient + moved)
            with_gradient = boxes + moved
            boxes = with_gradient.detach().clamp(-_FAR, _FAR)
            states.append(state)
            logits.append(_of(decoder.class_embed, i)(state).float())
        return torch.stack(states), torch.stack(logits), torch.stack(coordinates)

    def _start(self) -> None:
        """Initialise weights as the authors do (github.com/IDEA-Research/DINO): Xavier, zero box corrections, and a low
        class prior. Sampling offsets, attention weights, value and output projections stay as transformers initialises
        them.
        """
        same = ("sampling_offsets", "attention_weights", "value_proj", "output_proj")
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)) and not any(part in name for part in same):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.level_embed)
        for head in (self.enc_bbox_head, *self.decoder.bbox_embed):
            nn.init.zeros_(head.layers[-1].weight)
        for head in (self.enc_score_head, *self.decoder.class_embed):
            head.reset_parameters()
            nn.init.constant_(head.bias, -math.log((1 - _PRIOR) / _PRIOR))


def build(kind: str, options: dict[str, Any], num_classes: int, pyramid: Pyramid, where: str) -> Dino:
    """Build an untrained DINO for the maps of ``pyramid``, by :data:`OPTIONS`.

    Raises:
        SpecError: an option does not exist, or has an invalid value.
    """
    channels = pyramid.channels
    for name in options:
        if name not in OPTIONS:
            raise SpecError("DINO has no such argument", where=f"{where}.options.{name}", hint=f"{', '.join(OPTIONS)}.")
    least = RTDetrResNetConfig(embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, layer_type="basic")
    try:
        config = DinoConfig(backbone_config=least, num_labels=num_classes, **options)
        for name in _POSITIVE:
            if not getattr(config, name) > 0:
                raise SpecError(f"{getattr(config, name)} is not above 0", where=f"{where}.options.{name}")
        if config.num_feature_levels < len(channels):
            message = f"the backbone has {len(channels)} levels, which are all used"
            raise SpecError(message, where=f"{where}.options.num_feature_levels")
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if config.d_model % (4 * getattr(config, name)):
                message = f"4 times it does not divide d_model ({config.d_model})"
                raise SpecError(message, where=f"{where}.options.{name}")
        return Dino(config, channels)
    except (StrictDataclassError, ValueError, TypeError, KeyError, RuntimeError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise SpecError(f"transformers cannot build this detector: {message}", where=f"{where}.options") from None


def run(dino: Dino, maps: list[torch.Tensor], images: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None):
    """Run ``dino`` on ``maps``; arguments and output as :class:`radioplat.models.detectors.base.Detector`."""
    return dino(maps, targets)


def input_projections(dino: Dino) -> nn.ModuleList:
    """Return the layers that bring the maps to the encoder's width: one a map, then those of further levels."""
    return dino.input_proj


def level_shapes(dino: Dino, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return heights and widths of the maps that the encoder reads, the levels after the backbone's included."""
    shapes = list(shapes)
    while len(shapes) < dino.config.num_feature_levels:
        height, width = shapes[-1]
        shapes.append(((height + 1) // 2, (width + 1) // 2))
    return shapes


def _of(heads: nn.ModuleList, layer: int) -> nn.Module:
    return heads[min(layer, len(heads) - 1)]


def _level(channels: int, width: int, kernel: int) -> nn.Sequential:
    groups = math.gcd(32, width // 4)  # 32, or fewer for narrow layers: at least four channels a group
    stride = 1 if kernel == 1 else 2
    return nn.Sequential(nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.GroupNorm(groups, width))


def _box_head(width: int) -> nn.Module:
    return DeformableDetrMLPPredictionHead(width, width, 4, 3)


def _grid(shapes: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Return logits of a default box around each position, ``[1, N, 4]``, fp32."""
    boxes = []
    for level, (height, width) in enumerate(shapes):
        y, x = torch.meshgrid(
            (torch.arange(height, device=device) + 0.5) / height,
            (torch.arange(width, device=device) + 0.5) / width,
            indexing="ij",
        )
        side = torch.full_like(x, min(_SIDE * 2**level, _WIDEST))
        boxes.append(torch.stack([x, y, side, side], -1).flatten(0, 1))
    return torch.cat(boxes)[None].logit(1e-5)


def _sine(boxes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the sine embedding of boxes ``[B, Q, 4]``: ``[B, Q, 2 D]`` in the dtype of ``like [..., D]``."""
    half = like.shape[-1] // 2
    step = torch.arange(half, device=boxes.device)
    rate = _TEMPERATURE ** (2 * step.div(2, rounding_mode="floor") / half)
    angle = 2 * math.pi * boxes[..., None] / rate
    return torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1).flatten(2).to(like.dtype)
