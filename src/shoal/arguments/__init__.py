"""Options as they are typed or written in files: words and TOML to the fields of dataclasses, and their help."""
