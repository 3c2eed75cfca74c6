# Runs in each machine: executes the commands that arrive at the second serial port (command.py), as long as the machine runs.
port=/dev/ttyS1
stty -F $port raw -echo
# With pipes, because a shell whose input is a terminal prints prompts.
cat $port | sh 2>&1 | cat >$port
