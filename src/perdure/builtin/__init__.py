"""Programs that every engine has: workflows like any other, which do perdure's own work."""
