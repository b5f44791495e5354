"""Applications to start from: `quickstart` on one screen, `document`, `moderation` and `cascade` with real models."""
