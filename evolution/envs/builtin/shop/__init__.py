"""The shop: products, ranking, goals and WebShop's reward."""
