"""MoldUDP64 (Nasdaq, version 1.00): how exchanges number and repair their feeds over UDP."""
