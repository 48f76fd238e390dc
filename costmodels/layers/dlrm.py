"""``dlrm``: the bottom MLP, the interaction and the top MLP of a DLRM as one layer."""

from dataclasses import dataclass
from typing import Literal, final

from costmodels.layers import parts
from costmodels.layers.base import AbstractLayer, Built, Flow, check_cross


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dlrm(AbstractLayer):
    """TorchRec's DLRM, whose bottom MLP runs while vectors are looked up.

    Reference: Naumov et al. 2019 (arXiv 1906.00091); for ``dcn`` Wang et al. 2021.

    Attributes:
        bottom_mlp: output widths of the layers before the interaction.
        top_mlp: output widths of the layers after it.
        interaction: how dense and looked-up vectors are combined: by products of all pairs
            (``dot``), side by side (``cat``), or by cross layers over them (``dcn``).
        dcn_num_layers: cross layers; 0 for other interactions.
        dcn_low_rank_dim: rank of the weights of the cross layers; 0 for other interactions.
    """

    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    interaction: Literal["dot", "cat", "dcn"] = "dot"
    dcn_num_layers: int = 0
    dcn_low_rank_dim: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range."""
        AbstractLayer.__post_init__(self)
        check_cross(self.interaction, self.dcn_num_layers, self.dcn_low_rank_dim)
        self.need(
            not self.before_tables, "before_tables does not go with it; its bottom MLP is there"
        )

    def build(self, flow: Flow) -> Built:
        """The bottom MLP before the tables, and all else after them."""
        return parts.dlrm(flow, self)
