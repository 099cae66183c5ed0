// With go-zeromq, which announces ZMTP 3.0: ENDPOINT PATH COPY fetches a file from `tow serve`, ten requests ahead; request
// ENDPOINT SERVICE and work ENDPOINT SERVICE are the two ends of `tow broker`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/go-zeromq/zmq4"
)

const (
	pieceBytes = 250_000
	ahead      = 10
)

func fetch(endpoint, path, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dealer := zmq4.NewDealer(ctx)
	defer dealer.Close()
	if err := dealer.Dial(endpoint); err != nil {
		return err
	}
	file, err := os.Create(target)
	if err != nil {
		return err
	}
	defer file.Close()

	ask := func(index int) error {
		offset := strconv.Itoa(index * pieceBytes)
		return dealer.SendMulti(zmq4.NewMsgFrom([]byte("fetch"), []byte(path), []byte(offset), []byte(strconv.Itoa(pieceBytes))))
	}
	asked := 0
	for ; asked < ahead; asked++ {
		if err := ask(asked); err != nil {
			return err
		}
	}
	for {
		answer, err := dealer.Recv()
		if err != nil {
			return err
		}
		if len(answer.Frames) != 1 {
			return fmt.Errorf("no piece but %q", answer.Frames)
		}
		if _, err := file.Write(answer.Frames[0]); err != nil {
			return err
		}
		if len(answer.Frames[0]) < pieceBytes {
			return nil
		}
		if err := ask(asked); err != nil {
			return err
		}
		asked++
	}
}

func main() {
	var err error
	switch arguments := os.Args[1:]; arguments[0] {
	case "request":
		err = request(arguments[1], arguments[2], 50)
	case "work":
		err = work(arguments[1], arguments[2])
	default:
		err = fetch(arguments[0], arguments[1], arguments[2])
	}
	if err != nil {
		log.Fatal(err)
	}
}
