module towpath.example

go 1.24

require github.com/pebbe/zmq4 v1.4.0
