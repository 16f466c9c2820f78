"""Values as bytes: codecs, recorded failures, signatures, limits."""
