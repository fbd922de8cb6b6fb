"""Fixed targets for texts that must not depend on the machine."""

import dataclasses

from thermit.codegen.target import host_target

# the loops depend on the width of vectors only
AVX2 = dataclasses.replace(host_target(), vector_bits=256)
