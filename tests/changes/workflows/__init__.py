"""The workflows as they were deployed first. The modules beside this package change them."""
