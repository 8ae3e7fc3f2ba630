"""Models whose weights are what is wanted: a vector of each word"""
