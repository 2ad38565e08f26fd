"""Turning exact numbers into feature vectors."""

from ani.encoders.fourier import FourierNumberEncoder

__all__ = ["FourierNumberEncoder"]
