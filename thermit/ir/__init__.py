"""The graph: types, primitives (THE TABLE), interned nodes, typed constructors, checks, meaning in numpy.

Floors inside: types < prims < node < build < verify, interp.
"""
