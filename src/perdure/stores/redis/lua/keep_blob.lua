-- A reference that no journal holds: the blob is never collected.

refer('', { arguments() })
return 1
