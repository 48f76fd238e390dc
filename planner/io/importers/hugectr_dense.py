"""Reads the dense part of a HugeCTR configuration from its list of layers."""

from __future__ import annotations

from typing import Any, Final

from costmodels.workload import DataType, DenseArch, Interaction, InteractionKernel
from planner.io.importers.base import Reader
from planner.io.yaml_reader import Keys

_FREE: Final = frozenset(
    [
        "Data",
        "ReLU",
        "Dropout",
        "Reshape",
        "Concat",
        "Slice",
        "Interaction",
        "MultiCross",
        "InnerProduct",
        "FusedInnerProduct",
        "MLP",
        "BinaryCrossEntropyLoss",
        "CrossEntropyLoss",
        "MultiCrossEntropyLoss",
        "Sigmoid",
        "Add",
    ]
)
"""Layers that are counted elsewhere, or that take almost no time."""

_DENSE_INPUT: Final = "dense"


def dense_of(
    reader: Reader, layers: list[dict[str, Any]], data: int, dtype: DataType
) -> tuple[DenseArch, list[str]]:
    """The dense part, and the layers that it leaves out.

    Fully connected layers that depend only on the dense input are the bottom MLP; the others are
    the top MLP.

    Raises:
        InvalidInputError: a layer without its sizes, or with sizes out of range.
    """
    width, top = _dense_input(reader, layers[data], ("layers", data))
    seen: dict[str, set[str]] = {key: {_DENSE_INPUT} for key in top}
    bottom_mlp: list[int] = []
    top_mlp: list[int] = []
    cross: tuple[int, int] | None = None
    has_dot = False
    skipped: list[str] = []
    for number, layer in enumerate(layers):
        kind, keys = str(layer.get("type")), ("layers", number)
        sources: set[str] = set()
        for name in names_of(layer.get("bottom")):
            sources |= seen.get(name, set())
        if "SparseEmbedding" in kind:
            sources = {str(layer.get("top"))}
        if kind != "Data":
            seen |= dict.fromkeys(names_of(layer.get("top")), sources)
        if kind in ("InnerProduct", "FusedInnerProduct", "MLP"):
            sizes = _sizes(reader, layer, kind, keys)
            (bottom_mlp if sources == {_DENSE_INPUT} else top_mlp).extend(sizes)
        elif kind == "MultiCross":
            cross = _cross(reader, layer, keys)
        elif kind == "Interaction":
            has_dot = True
        elif kind not in _FREE and "SparseEmbedding" not in kind:
            skipped.append(kind)
    if cross and not top_mlp:
        skipped.append("MultiCross")
        cross = None
    dense = DenseArch(
        num_dense_features=width,
        bottom_mlp=tuple(bottom_mlp),
        top_mlp=tuple(top_mlp),
        interaction=_interaction(has_dot=has_dot or not top_mlp, has_cross=cross is not None),
        interaction_kernel=InteractionKernel.FUSED if has_dot and top_mlp and not cross else None,
        dcn_num_layers=cross[0] if cross else 0,
        dcn_low_rank_dim=cross[1] if cross else 0,
        dtype=dtype,
    )
    names = ", ".join(sorted(set(skipped)))
    return dense, [f"layers of type {names}: counted as taking no time"] if skipped else []


def names_of(value: object) -> list[str]:
    """Names of tops or bottoms: one, or a list."""
    listed = value if isinstance(value, list) else [value]
    return [name for name in listed if isinstance(name, str)]


def _interaction(*, has_dot: bool, has_cross: bool) -> Interaction:
    if has_cross:
        return Interaction.DCN
    return Interaction.DOT if has_dot else Interaction.CAT


def _dense_input(reader: Reader, data: dict[str, Any], keys: Keys) -> tuple[int, list[str]]:
    if "dense" not in data:
        return 0, []
    keys = (*keys, "dense")
    dense = reader.mapping(data["dense"], keys)
    width = reader.whole(
        reader.required(dense, "dense_dim", keys), (*keys, "dense_dim"), low=0, high=10**6
    )
    return width, names_of(dense.get("top"))


def _sizes(reader: Reader, layer: dict[str, Any], kind: str, keys: Keys) -> list[int]:
    """Outputs of a fully connected layer, or of each of a stack of them."""
    section = "mlp_param" if kind == "MLP" else "fc_param"
    keys = (*keys, section)
    params = reader.mapping(reader.required(layer, section, keys[:-1]), keys)
    key = "num_outputs" if "num_outputs" in params else "num_output"
    value = reader.required(params, key, keys)
    sizes = value if isinstance(value, list) else [value]
    return [reader.whole(n, (*keys, key), high=10**6) for n in sizes]


def _cross(reader: Reader, layer: dict[str, Any], keys: Keys) -> tuple[int, int]:
    """Layers and rank of a cross network; a vector per layer (DCN version 1) has rank 1."""
    keys = (*keys, "mc_param")
    params = reader.mapping(reader.required(layer, "mc_param", keys[:-1]), keys)
    count = reader.whole(
        reader.required(params, "num_layers", keys), (*keys, "num_layers"), high=1000
    )
    rank = reader.whole(params.get("projection_dim") or 1, (*keys, "projection_dim"), high=10**6)
    return count, rank
