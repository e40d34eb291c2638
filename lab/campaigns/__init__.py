"""Lab: campaigns that the product does not need: co-location, occupancy, fusion."""
