"""What only some processors can show: products of bfloat16. A run that asks for them on others is refused, which all can show."""

from __future__ import annotations

import pytest
import torch

able = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor has no instructions for it: nothing is rounded, and a run would be refused",
)
