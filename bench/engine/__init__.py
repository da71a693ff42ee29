"""The store alone, without a worker: what do the guarantees cost over bare SQL?"""
