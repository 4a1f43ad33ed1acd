"""Pictures of masks, weights and caches."""

from qkv.viz.terminal import curve, mask_grid, weight_grid

__all__ = ["curve", "mask_grid", "weight_grid"]
