"""Language modelling: training data, scoring, generation, completion."""
