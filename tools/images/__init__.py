"""Container images without an image registry or a daemon: build, archive, name.

For the demo and the end-to-end tests; no part of the product. `python -m tools.images build NAME|all`.
"""

from tools.images.build import BuiltImage, ensure_image, reference_of
from tools.images.errors import ImageError
from tools.images.recipes import IMAGE_NAMES, ImageName

__all__ = ["IMAGE_NAMES", "BuiltImage", "ImageError", "ImageName", "ensure_image", "reference_of"]
