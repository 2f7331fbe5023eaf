"""The coordinator asks a model how a round is asked, and writes down all that was said.

consult.py   one consultation within its time, durable turn by turn
endpoint.py  the connection to an OpenAI-compatible endpoint
"""
