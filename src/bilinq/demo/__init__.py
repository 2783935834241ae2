"""`bilinq serve --demo`: the live service with a simulated fleet, as processes of their own that speak HTTP."""
