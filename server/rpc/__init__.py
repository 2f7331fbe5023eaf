"""The gRPC services: who may call, what is decoded, which error is answered."""
