"""Time loops of the recurrent layers in C++: `cells.h` reads like `seqloom/layers/cells.py`, whose twin it
is.

`pip install` compiles them where there is a compiler (`hatch_build.py`); `python -m seqloom.native` does so
by hand.
"""
