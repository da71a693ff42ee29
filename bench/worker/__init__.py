"""One worker process: what does it cost over the engine alone, and how fast does it notice?"""
