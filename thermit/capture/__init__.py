"""What a call is: its signature, the trace of the function on stand-ins, the facts that were read."""
