"""The dense part of a model: the layers that are not embedding tables."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.fields import Range, settle
from costmodels.layers.base import AbstractLayer, Operators, check_cross

_Width = Annotated[int, Range(1, 10**6)]


class Interaction(StrEnum):
    """How the dense vector and the looked-up vectors are combined before the top MLP.

    ``dot``: products of all pairs of vectors. ``cat``: the vectors side by side. ``dcn``: low-rank
    cross layers over them (DCN V2).
    """

    DOT = "dot"
    CAT = "cat"
    DCN = "dcn"


class InteractionKernel(StrEnum):
    """Which kernels run the interaction ``dot``.

    ``eager``: PyTorch's operators one by one. The backward pass of the choice of pairs sorts their
    indices and adds up gradients by index. ``compiled``: as torch.compile joins them, without that
    sort. ``fused``: one kernel that reads the vectors and writes the pairs, as in HugeCTR and
    NVIDIA's DLRM.
    """

    EAGER = "eager"
    COMPILED = "compiled"
    FUSED = "fused"


class Framework(StrEnum):
    """Which framework trains the dense part; it decides how wide intervals are.

    ``measured``: PyTorch, TorchRec and HugeCTR, whose steps the constants were compared with.
    ``other``: TensorFlow, JAX and all others, whose kernels differ.
    """

    MEASURED = "measured"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorList:
    """The operators of a dense part for one batch size, such as those of a traced module.

    Attributes:
        batch_size_per_rank: samples per rank that the operators are for.
        before_tables: operators that need no looked-up vectors; they run while vectors travel.
        after_tables: all other operators, in the order of the forward pass.
        source: where the list comes from, for messages.
    """

    batch_size_per_rank: Annotated[int, Range(1, 10**8)]
    before_tables: Operators = ()
    after_tables: Operators = ()
    source: str = ""

    def __post_init__(self) -> None:
        """Check the batch."""
        settle(self, "a list of operators: ")
        shared = [o.name for o in (*self.before_tables, *self.after_tables) if o.shared_bytes]
        require(
            not shared,
            f"operators {shared[:5]} have shared_bytes, but ranks share layers alone; remove them",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseArch:
    """The dense part of a model, in one of three forms; a model without any of them has none.

    The forms are: bottom MLP, interaction and top MLP of a DLRM; ``layers``; or ``operators``.

    Attributes:
        num_dense_features: numbers per sample that enter the first layer.
        bottom_mlp: output widths of the layers before the interaction.
        top_mlp: output widths of the layers after it.
        interaction: how the dense vector and the looked-up vectors are combined.
        interaction_kernel: which kernels run the interaction ``dot``, also in layers; None for
            those of the pipeline: fused with HugeCTR's, eager with all others.
        compiled: whether a compiler joins the kernels between products of the whole dense part, as
            torch.compile does. Layers that can be compiled one by one are then compiled, and so is
            the interaction, unless ``interaction_kernel`` says otherwise.
        framework: which framework runs the dense part; None if that is not known. A model without
            tables, or with ``compiled``, then gets the interval of ``other``, and any other one
            that of ``measured``.
        dcn_num_layers: cross layers of the interaction ``dcn``; 0 for the others.
        dcn_low_rank_dim: rank of the weights of those layers.
        dtype: element type of weights and activations.
        layers: layers of the kinds in :mod:`costmodels.layers`, in the order of the forward pass.
        operators: a list of operators for one batch size.

    Raises:
        InvalidValueError: a size is out of range, or the dense part is given in two forms.
    """

    num_dense_features: Annotated[int, Range(0, 10**8)] = 0
    bottom_mlp: tuple[_Width, ...] = ()
    top_mlp: tuple[_Width, ...] = ()
    interaction: Interaction = Interaction.DOT
    interaction_kernel: InteractionKernel | None = None
    compiled: bool = False
    framework: Framework | None = None
    dcn_num_layers: int = 0
    dcn_low_rank_dim: int = 0
    dtype: DataType = DataType.FP32
    layers: tuple[AbstractLayer, ...] = ()
    operators: OperatorList | None = None

    def __post_init__(self) -> None:
        """Check the cross network, and that there is one form."""
        settle(self, "dense: ")
        sizes = (*self.bottom_mlp, *self.top_mlp)
        check_cross(self.interaction.value, self.dcn_num_layers, self.dcn_low_rank_dim)
        meets = self.interaction is not Interaction.DOT
        forms = {
            "bottom_mlp and top_mlp": bool(sizes),
            "interaction": meets and not sizes,
            "layers": bool(self.layers),
            "operators": self.operators is not None,
        }
        given = [name for name, there in forms.items() if there]
        require(
            len(given) <= 1,
            f"the dense part is given twice, by {' and by '.join(given)}; keep one of them",
        )
        has_dot = bool(self.top_mlp) and not meets
        has_dot |= any(type(x).__module__.endswith((".dot", ".dlrm")) for x in self.layers)
        require(
            self.interaction_kernel is None or has_dot,
            f"interaction_kernel {self.interaction_kernel} needs interaction dot with a top_mlp, "
            "or a layer dot or dlrm; remove it",
        )
        require(
            not meets or bool(self.top_mlp),
            f"interaction {self.interaction} needs a top_mlp, which it feeds",
        )

    @property
    def is_given(self) -> bool:
        """Whether there is a dense part."""
        return bool(self.bottom_mlp or self.top_mlp or self.layers) or self.operators is not None


NO_DENSE_PART: Final = DenseArch()
"""The dense part of a model whose layers are not described."""
