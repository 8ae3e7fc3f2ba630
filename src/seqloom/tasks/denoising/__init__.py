"""Denoising: encoder-decoders pre-trained on plain text, as T5 and BART are"""
