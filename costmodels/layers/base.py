"""The interface of a kind of layer: it turns what reaches the layer into a list of operators."""

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import ClassVar, Self

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.fields import settle
from costmodels.operators import Operator

Operators = tuple[Operator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What reaches a layer, for the batch of one rank.

    Attributes:
        batch_size: samples; those of all ranks that share the layers if ``split`` is above 1.
        dtype: element type of weights and activations.
        width: elements at each position that the layer before gives.
        length: positions of each sample.
        is_input: whether no layer has run yet on these elements.
        num_vectors: looked-up vectors per sample that wait for the first layer that joins them.
        num_elements: elements per sample of all these vectors together.
        has_old_bias: whether PyTorch is of 2021 or older, which adds the bias of a linear layer on
            more than two axes in a kernel of its own.
        interaction_kernel: which kernels run the interaction ``dot``: ``eager``, ``compiled`` or
            ``fused``.
        piece_bytes: bytes of an element of the looked-up vectors where PyTorch's operators join
            them; 0 where lookups write to one tensor, and where one copy joins all.
        split: how many ranks share each layer (tensor parallelism).
    """

    batch_size: int
    dtype: DataType = DataType.FP32
    width: int = 0
    length: int = 1
    is_input: bool = True
    num_vectors: int = 0
    num_elements: int = 0
    has_old_bias: bool = False
    interaction_kernel: str = "eager"
    piece_bytes: float = 0.0
    split: int = 1

    @property
    def positions(self) -> int:
        """Positions of all samples: the rows of the matrix that a linear layer multiplies."""
        return self.batch_size * self.length

    def after(self, width: int, length: int | None = None) -> Self:
        """What comes out of a layer.

        Args:
            width: elements that the layer gives at each position.
            length: positions of each sample; None for as many as reach the layer.
        """
        return replace(self, width=width, length=length or self.length, is_input=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The operators of one or more layers.

    Attributes:
        before: operators that run before the looked-up vectors arrive, in the forward pass's order.
        after: operators that run afterwards.
        flow: what comes out of the last layer.
    """

    before: Operators = ()
    after: Operators = ()
    flow: Flow = field(default_factory=lambda: Flow(batch_size=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractLayer(ABC):
    """One entry under ``dense.layers`` of a workload file; its fields are the keys of the entry.

    Attributes:
        name: the names of its operators begin with it; empty for the name of the kind.
        before_tables: whether the layer runs while vectors are looked up. Such layers stand before
            all others.
    """

    name: str = ""
    before_tables: bool = False
    can_split: ClassVar[bool] = False
    """Whether ranks can share a layer of this kind (tensor parallelism)."""
    needs: ClassVar[dict[str, str]] = {}
    """Keys that count only with another key, which must then be given, too."""

    @property
    def prefix(self) -> str:
        """The name of the layer, or that of its kind if it has none."""
        return self.name or type(self).__module__.rpartition(".")[2]

    @property
    def remark(self) -> str:
        """What users should know about the price of the layer on a GPU; usually empty."""
        return ""

    def as_compiled(self) -> Self:
        """The same layer where a compiler joins kernels, if its kind knows by itself which."""
        return self

    def evened(self) -> Self:
        """The same layer if all ranks get equal work; another one where lengths are as drawn."""
        return self

    @abstractmethod
    def build(self, flow: Flow) -> Built:
        """The operators of the layer, and what comes out of it.

        Args:
            flow: what reaches the layer.

        Raises:
            InvalidValueError: what reaches the layer does not fit it.
        """

    def __post_init__(self) -> None:
        """Refuse values of other kinds, sizes that are out of range, and empty lists of sizes.

        The fields without a default are sizes, or lists of sizes, of 1..1e6. Those whose default is
        the number 0 may be 0, too, and those whose default is 1 may not. All are at most 1e6 unless
        their metadata say ``most``.

        Raises:
            InvalidValueError: the message names the layer, the key and the value.
        """
        settle(self, f"layer {self.prefix}: ")
        for known in fields(self):
            key, default, value = known.name, known.default, getattr(self, known.name)
            other = self.needs.get(key)
            self.need(
                other is None or value == default or bool(getattr(self, other)),
                f"{key} {value} counts only with {other}; leave {key} out, or give {other}, too",
            )
            if default is not MISSING and (isinstance(default, bool) or default not in (0, 1)):
                continue
            given = value if isinstance(value, tuple) else (value,)
            least, most = int(default != 0), known.metadata.get("most", 10**6)
            self.need(
                bool(given) and all(least <= size <= most for size in given),
                f"{key} must be {least}..1e{len(str(most)) - 1}, got {value}",
            )

    def need(self, condition: bool, rule: str) -> None:  # noqa: FBT001 - reads as a sentence
        """Refuse the entry unless a condition holds; the message names the layer and the rule."""
        require(condition, f"layer {self.prefix}: {rule}")

    def placed(self, operators: Operators, flow: Flow) -> Built:
        """All operators before or after the tables, as ``before_tables`` says.

        Args:
            operators: the operators of the layer.
            flow: what comes out of it.
        """
        if self.before_tables:
            return Built(before=operators, flow=flow)
        return Built(after=operators, flow=flow)


def check_cross(interaction: str, num_layers: int, low_rank: int) -> None:
    """Refuse a cross network (DCNv2) without its sizes, and such sizes without a cross network.

    Args:
        interaction: ``dcn`` for a cross network.
        num_layers: cross layers; 0 without a cross network.
        low_rank: rank of their weights; 0 without a cross network.

    Raises:
        InvalidValueError: sizes are missing, or given for nothing; the message names the keys.
    """
    sizes = (num_layers, low_rank)
    is_needed, are_given = interaction == "dcn", all(1 <= size <= 10**6 for size in sizes)
    require(
        are_given if is_needed else sizes == (0, 0),
        "interaction dcn needs dcn_num_layers and dcn_low_rank_dim of 1..1e6, and they need it; "
        f"got interaction {interaction} with {sizes}",
    )


def build_layers(layers: tuple[AbstractLayer, ...], before: Flow, tables: Flow) -> Built:
    """The operators of all layers, one layer after the other.

    Args:
        layers: the layers; those with ``before_tables`` come first.
        before: what reaches the first layer.
        tables: its looked-up vectors reach the first layer without ``before_tables``.

    Raises:
        InvalidValueError: a layer does not fit what reaches it, or stands in the wrong place.
    """
    built, has_met = Built(flow=before), False
    for layer in layers:
        layer.need(
            not (layer.before_tables and has_met),
            "has before_tables but follows a layer without; move it up",
        )
        flow = built.flow
        layer.need(
            flow.split == 1 or layer.can_split,
            f"ranks cannot share it, so tensor_parallel {flow.split} must be 1; only transformer "
            "is split",
        )
        if not layer.before_tables and not has_met:
            has_met = True
            flow = replace(flow, num_vectors=tables.num_vectors, num_elements=tables.num_elements)
        new = layer.build(flow)
        built = Built(
            before=(*built.before, *new.before), after=(*built.after, *new.after), flow=new.flow
        )
    return built
