"""`python -m tools.images build operator|gateway|engine-cpu|all`: print each image's name and archive.

`python -m tools.images reference NAME` prints the name only and builds nothing.
"""

import argparse
import sys
from collections.abc import Sequence

from tools.images.build import ensure_image, reference_of
from tools.images.errors import ImageError
from tools.images.recipes import IMAGE_NAMES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.images", description=__doc__)
    parser.add_argument("action", choices=("build", "reference"))
    parser.add_argument("image", choices=(*IMAGE_NAMES, "all"))
    options = parser.parse_args(argv)
    names = IMAGE_NAMES if options.image == "all" else (options.image,)
    try:
        for name in names:
            if options.action == "reference":
                print(reference_of(name), flush=True)
                continue
            image = ensure_image(name)
            print(image.reference, image.archive, flush=True)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted; run again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
