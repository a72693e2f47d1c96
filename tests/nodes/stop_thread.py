#!/usr/bin/env python3
"""Stops one thread of a process, wherever it is, while the other threads run on.

  stop_thread.py TID    prints "stopped", keeps the thread stopped, and ends when the thread has ended"""
import ctypes
import os
import sys

PTRACE_ATTACH, WALL = 16, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
tid = int(sys.argv[1])
if libc.ptrace(PTRACE_ATTACH, tid, None, None) != 0:
    sys.exit(f"thread {tid} cannot be stopped: {os.strerror(ctypes.get_errno())}")
os.waitpid(tid, WALL)
print("stopped", flush=True)
os.waitpid(tid, WALL)  # its parent learns of the end only after this
