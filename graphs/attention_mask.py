"""What a score gets added where a query may not see a key."""

from __future__ import annotations

# Finite, so that a row that sees nothing (left padding) stays finite; so large that no score
# survives beside it.
MASKED = -1e30
