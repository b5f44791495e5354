"""Experiments and the rivals in them: the extra `dovetail[lab]`. The product imports none of it."""
