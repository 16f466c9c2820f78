"""Commands on a store behind `perdure serve` or a mounted application: `--store https://host/flows`."""
