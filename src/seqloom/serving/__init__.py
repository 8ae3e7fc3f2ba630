"""Models behind HTTP: a thread for each model, the clients people already have, bounds on everything"""
