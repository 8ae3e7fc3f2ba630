"""Time loops of the recurrent layers in C++: `cells.h` repeats `layers/recurrent/cells.py`, equation by
equation.

`pip install` compiles them where there is a compiler (`hatch_build.py`); `python -m seqloom.native` does so
by hand.
"""
