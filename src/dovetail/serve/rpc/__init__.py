"""gRPC in front of the live system: the Open Inference Protocol v2 again. It needs the extra `grpc`.

`launch` imports it when there is a port for it, and nothing else does.
"""
