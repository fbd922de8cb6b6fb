"""Loop nests to LLVM text: mathematics as polynomials, then emission for a target."""
