"""What all networks share (config, parameters, tokens, the base module), and the baselines: LSTM, RNN, convolution."""
