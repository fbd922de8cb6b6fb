"""The native parts of the runtime: their text, the language it is in, its machine code.  Needs nothing but LLVM: it is compiled with the package."""
