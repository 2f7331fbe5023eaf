"""Whom a round asks, chosen by public facts alone, so that anybody can choose alike again."""
