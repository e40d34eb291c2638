"""Campaigns that only a laboratory needs: co-location, occupancy, fusion."""
