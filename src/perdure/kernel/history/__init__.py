"""Operations on an existing journal: fork, retry, rewind, diff, export and import."""
