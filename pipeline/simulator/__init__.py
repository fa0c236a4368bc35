"""Request -> what an OpenRouter-like endpoint in front of several providers answers, and the truth of it."""
