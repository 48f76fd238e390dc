"""Work of options as the search sees it; see :mod:`costmodels.option_work`."""

from __future__ import annotations

from costmodels.option_work import OptionWork

__all__ = ["OptionWork"]
