"""The interface of a kind of layer: what reaches it, and the operators it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.operators import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What has been computed when a layer begins, for the batch of one rank.

    ``width`` elements per position come from the layer before, for ``length`` positions of each
    sample; ``is_input`` says that no layer has run on them. ``num_vectors`` looked-up vectors of
    ``num_elements`` elements together wait for the first layer that joins them. ``has_old_bias``
    says that PyTorch is of 2021 or older, where a linear layer on more than two axes adds its bias
    in a kernel of its own. ``split`` ranks share each layer (tensor parallelism); the batch is then
    that of all of them.
    """

    batch_size: int
    dtype: DataType = DataType.FP32
    width: int = 0
    length: int = 1
    is_input: bool = True
    num_vectors: int = 0
    num_elements: int = 0
    has_old_bias: bool = False
    split: int = 1

    @property
    def positions(self) -> int:
        """Rows of a matrix that a layer multiplies."""
        return self.batch_size * self.length

    def after(self, width: int, length: int | None = None) -> Flow:
        """Behind a layer that gives ``width`` elements at each of ``length`` positions."""
        length = self.length if length is None else length
        return replace(self, width=width, length=length, is_input=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Operators of a layer before and after the looked-up vectors arrive, and what comes out."""

    before: tuple[Operator, ...] = ()
    after: tuple[Operator, ...] = ()
    flow: Flow = field(default_factory=lambda: Flow(batch_size=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractLayer(ABC):
    """One entry under ``dense.layers``; its fields are the keys of the file.

    ``name`` begins the names of its operators. Layers with ``before_tables`` run while vectors are
    looked up, and come before all others.
    """

    name: str = ""
    before_tables: bool = False
    can_split: ClassVar[bool] = False
    """Whether ranks can share it (tensor parallelism)."""

    @property
    def prefix(self) -> str:
        """The name, or that of the kind."""
        return self.name or type(self).__module__.rpartition(".")[2]

    @property
    def remark(self) -> str:
        """What its price on a GPU assumes that users may not expect, or nothing."""
        return ""

    @abstractmethod
    def build(self, flow: Flow) -> Built:
        """Operators for what reaches the layer.

        Raises:
            InvalidValueError: what reaches the layer does not fit it.
        """

    def placed(self, operators: tuple[Operator, ...], flow: Flow) -> Built:
        """All operators on the side of the tables that ``before_tables`` says."""
        if self.before_tables:
            return Built(before=operators, flow=flow)
        return Built(after=operators, flow=flow)


def check_sizes(where: str, **sizes: int | tuple[int, ...]) -> None:
    """Refuse sizes outside 1..1e6.

    Raises:
        InvalidValueError: names the layer, the key and the value.
    """
    for key, value in sizes.items():
        given = value if isinstance(value, tuple) else (value,)
        good = bool(given) and all(1 <= size <= 10**6 for size in given)
        require(good, f"layer {where}: {key} must be 1..1e6, got {value}")


def check_cross(interaction: str, num_layers: int, low_rank: int) -> None:
    """Refuse a cross network (DCNv2) without its sizes, and its sizes without a cross network.

    Raises:
        InvalidValueError: names the keys.
    """
    sizes = (num_layers, low_rank)
    if interaction == "dcn":
        require(
            all(1 <= size <= 10**6 for size in sizes),
            f"interaction dcn needs dcn_num_layers and dcn_low_rank_dim of 1..1e6, got {sizes}",
        )
    else:
        require(
            sizes == (0, 0),
            f"dcn_num_layers and dcn_low_rank_dim {sizes} need interaction dcn, got {interaction}; "
            "remove them, or change it",
        )


def build_layers(layers: tuple[AbstractLayer, ...], before: Flow, tables: Flow) -> Built:
    """All layers one after the other.

    Args:
        layers: those with ``before_tables`` first.
        before: what reaches the first layer.
        tables: has the looked-up vectors, which reach the first layer without ``before_tables``.

    Raises:
        InvalidValueError: a layer does not fit what reaches it, or stands in the wrong place.
    """
    built = Built(flow=before)
    has_met = False
    for layer in layers:
        require(
            not (layer.before_tables and has_met),
            f"layer {layer.prefix}: has before_tables but follows a layer without; move it up",
        )
        flow = built.flow
        require(
            flow.split == 1 or layer.can_split,
            f"layer {layer.prefix}: ranks cannot share it, so tensor_parallel {flow.split} must "
            "be 1; only transformer is split",
        )
        if not layer.before_tables and not has_met:
            has_met = True
            flow = replace(flow, num_vectors=tables.num_vectors, num_elements=tables.num_elements)
        new = layer.build(flow)
        built = Built(
            before=(*built.before, *new.before), after=(*built.after, *new.after), flow=new.flow
        )
    return built
