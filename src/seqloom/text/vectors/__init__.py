"""Files of word vectors: word2vec, GloVe, fastText."""
